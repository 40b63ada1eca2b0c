"""Leads Kineto in this process to an agent, which can ask it for traces."""
