"""How code of the probe runs inside the job: when, unseen, and with errors that stay its own."""
