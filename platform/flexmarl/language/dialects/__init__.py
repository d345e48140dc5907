"""The dialects in which programs ask agents: bodies become calls, answers become bodies or streams of events. Pure.

The gateway of training sessions and the control plane's door to finished agents speak them alike. What differs is which
fields a door heeds (`FieldRules`), and who answers.
"""
