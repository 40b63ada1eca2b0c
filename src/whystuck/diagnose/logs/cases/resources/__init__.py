"""Cases of memory, disks and file systems that ran out or do not answer."""
