"""The op log: every collective and point-to-point op of this rank, on any backend.

`docs/op-log.md` describes the file. Native hooks of process groups feed it from torch 2.14 on,
kernels of the dispatcher before that.
"""
