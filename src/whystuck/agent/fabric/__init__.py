"""The side of the agent that Kineto's clients talk to: datagrams of a unix socket.

`messages` packs and unpacks them, `addresses` says where the socket lies and who may be answered,
`endpoint` reads and answers.
"""
