"""Commands and options of other tools: dyno, dynolog, torchfrtrace."""
