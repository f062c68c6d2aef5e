"""Which model on which gpu-let. Pure, but for plan_files.py; the same input gives the same plan.

model.py         Demand, Inventory, PlanOptions in; Plan or Infeasible out
planner.py       `plan`;  several_kinds.py: with devices of several kinds
policies/        the policies by name, one file each
search/          gpu-lets under construction: what they cost, whether a device can carry them, moves
demand.py        headroom; which demands no device can meet
keep.py          staying near the previous plan
explain.py       why each gpu-let is as it is
verify.py        what a finished plan promises, checked anew
demand_file.py   what to serve, in TOML;  glet_files.py: rates.csv and ModelList.txt of glet
glet_config.py   glet's scheduler and node files
plan_files.py    opens demands and plans
picture.py       a plan as SVG and as text
"""
