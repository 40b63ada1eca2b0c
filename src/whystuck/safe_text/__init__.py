"""Text from jobs made safe to show: `secrets` hides passwords, tokens and keys, `escaping` makes
invisible and active characters visible, `markdown` quotes text in Markdown. Pure: text in, text out.
"""
