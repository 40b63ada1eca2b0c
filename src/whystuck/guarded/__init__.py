"""Work on paths that another user chose or may change: by descriptor, without links, as that user.

Standard library only.
"""
