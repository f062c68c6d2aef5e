"""Daemons that take over from one another under programs that run, and what that costs the programs.

scene.py    a daemon, its programs and the hand-overs, for the test and the script
__main__.py    `make upgrade-test`: 100 programs, 20 hand-overs, figures as JSON
client.c    a program that notes how long it waited, and tries to pass its limit
"""
