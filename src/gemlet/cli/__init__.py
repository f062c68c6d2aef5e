"""The command line: one file a verb, and what verbs share.

main.py          lists the verbs, loads each when it is asked for, prints errors
options.py, environment.py, messages.py    options; a program's environment; how errors and warnings look
run.py env.py cdi.py jupyter.py    start a program, or make what starts it; attended.py: with a person at the prompt
handing_over.py  commands that have others start programs, which then have no limits
overview.py      the status with or without a daemon, and what to type next
status.py top.py web.py history.py report.py explain.py trace.py audit.py    see what a daemon does, and did
set.py mps.py daemon.py stop.py    change it
doctor.py        checks this machine: doctor_checks.py, hook_check.py under the hook; image_checks.py: a root directory
demo.py          demo_client.py is its program; demo_programs.py demo_measurement.py demo_report.py demo_processors.py
demo_top.py      the end of the demo on a terminal
simulate.py      simulate_serving.py and simulate_replanning.py with `--serve`
plan.py profile.py serve.py infer.py load.py  models; serve_mps.py: the MPS of `serve`; load_run.py: the work of `load`
example.py       `--example FILE` of plan and simulate
kube.py          what runs in a Kubernetes cluster
completion.py    for shells
"""
