"""What the ranks record: the switch file, and changes to it while a job runs."""
