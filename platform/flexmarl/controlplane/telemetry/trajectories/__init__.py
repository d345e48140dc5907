"""Episodes for people: lists and their filters, groups, decoded turns, exports."""
