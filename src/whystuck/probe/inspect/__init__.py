"""Inspection: what is in the tensors of collectives, parameters and gradients. Off by default.

`docs/guides/inspection.md` describes it. While it is off nothing of this folder is loaded, and the
op log tests one attribute. Nothing here waits for a device, save where the user asks for `sync`.
"""
