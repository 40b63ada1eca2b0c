"""From live processes, files and sockets into an evidence folder."""
