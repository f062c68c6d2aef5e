"""The daemon around the native server, and the command line's side of its socket.

service.py       the daemon's life: lock, server, tasks, end;  options.py: how it runs
observer.py      what it sees: usage, devices, programs outside, the status
sockets.py       what programs join through
succession.py elder.py    one daemon takes over from another under programs that run; one that hands over
address.py lock.py notify.py logs.py    its directory; one daemon for each; "ready"; its log
log_writer.py    writes the log, for which nothing else waits
lock_holders.py  whether it is a daemon that keeps another one out
directory_trust.py    whether other users could put their sockets where the daemon's are
native.py        the native server as Python sees it
configuration.py the file in force
groups.py group_entry.py saved_groups.py    groups, their makers and ends; one group; groups kept on disk
members.py state_file.py    programs and what they hold, kept on disk for after a kill; such files
minima.py        which minimum a group may have beside the others
quotas.py        what the groups of one user may have together;  audit.py: programs outside gemlet
subordinate_uids.py    uids that count as those of another user
launchers.py     the processes that asked for groups;  fair_limit.py: who may have another place
api.py           the socket: protocol.py is the format, requests.py the types, answers.py the answers
foreign_files.py connections whose peers send descriptors
answer_order.py  whose request is answered next;  shared_status.py: one status for all who ask together
status.py explain.py request_warnings.py    the status document; why a group waits; what is granted with a warning
recent_usage.py  the last two minutes, in memory: measured shares
history_recorder.py history_store.py    90 days on disk, the recorded history: the thread, the file
history_room.py  of which groups it has some
history_sampling.py history_moment.py    makes its moments of what the daemon sees; what one keeps
accounting.py events.py    memory the driver holds for each process; what happened last
latency.py totals.py    how long requests took; what groups used so far, for the metrics
attribution.py   whose the busy time of a device is
tracing.py       the last steps between programs and the arbiter
inventory.py processes.py    what the daemon asks of the driver, and of the kernel
known_devices.py the devices that the driver shows
programs.py program_names.py    what people call a program;  users.py: who a user is;  aside.py: work that may block
allocator.py     memory of large answers goes back to the kernel
mps.py           gemlet's MPS control daemon;  mps_state.py: its states;  pipe_directories.py: those of others
mps_environment.py mps_answers.py    a program's variables of MPS; answers about MPS
connection.py autostart.py    the command line's side: asking a daemon, and starting one
fresh_process.py what one that is started does not take over from the command
"""
