"""What the user said, checked: devices, topology, models, workflow and job, as immutable values.

`load` turns a YAML file into a `Job`; every other module holds one central type. Nothing here knows seconds.
"""
