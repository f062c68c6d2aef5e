"""A model repository: DIR/MODEL/{config.yaml, config.pbtxt}, DIR/MODEL/VERSION/model.*, as Triton lays it out.

config.py          what both files say, in one shape, and the specification that comes of it
native_config.py   config.yaml
triton_config.py   the useful part of config.pbtxt;  text_fields.py: which fields it names
completion.py      what config.pbtxt leaves out, and the model's own file knows
tree.py            the directory: which models there are, which versions are served
example.py         makes an example
"""
