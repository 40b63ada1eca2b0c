"""Evidence to findings: algorithms on arrays, rules that judge, an engine that runs them."""
