"""Text from jobs made safe to show; pure, text in and text out.

`secrets` hides passwords, tokens and keys, `escaping` makes invisible and active characters
visible, `markdown` quotes text in Markdown, and `values` does it for whole reports and tables.
"""
