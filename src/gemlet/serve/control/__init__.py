"""The plan follows the load: rates, when to plan anew, what that changes, and doing it while requests come.

settings.py      how it behaves
controlled_fleet.py    what it controls: the server implements this
rates.py         how fast requests come, by model, and how unevenly
targets.py       what to plan for: moves only when it is clearly wrong
decide.py        when to plan anew
propose.py       the plan; overload.py where there are too few devices; slots.py numbers the living ones
difference.py    the steps from one plan to the next;  change.py: what was done, as sentences
controller.py    all of that on a clock, beside a server
planning.py      planning in a process of its own

All but the last two are pure, and the simulator runs them as they are.
"""
