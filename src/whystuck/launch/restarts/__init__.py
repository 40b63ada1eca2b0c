"""Several rounds of one job: when it is started again, and which code it ends with."""
