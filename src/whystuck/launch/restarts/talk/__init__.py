"""How the nodes of a job talk: each has a connection to the first one, as long as it is in the job.

While the command runs, nobody reads: what a node says before it leaves waits in the kernel of the
first node, and so does the end of a connection. Between two rounds the first node reads it all,
and answers. No file is touched, and every wait has an end.
"""
