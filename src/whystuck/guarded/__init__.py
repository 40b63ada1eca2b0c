"""Files that are not our own: of another user, in evidence from elsewhere, or behind a URL.

Paths that another user chose or may change are opened by descriptor, without links, as that user.
Standard library only, and fsspec where a URL needs it.
"""
