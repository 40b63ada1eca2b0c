"""The critical path of a rank: what each ns between its first and its last event waited for."""
