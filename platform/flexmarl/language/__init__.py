"""What people and environments say as messages, and what models read and write as token ids.

Invariants: a conversation is messages, a chain is token ids; only a renderer goes from one to the other, and what was
sampled is never rendered again. Nothing here loads a model, plays or stores.
"""
