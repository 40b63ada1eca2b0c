"""Who the processes are that talk to the agent.

`commands` and `identify` read what /proc tells of one, `kinds` tells launchers and helpers from
ranks by what is known of all, `registry` keeps them as long as they live.
"""
