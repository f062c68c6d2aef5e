#!/bin/sh
# A control program for tests, small enough to be seen through. Files in its pipe directory tell it what to be:
#   servers, clients   what it lists            hangs    it answers nothing
#   fails              it exits with 3          stays    it does not end when told to
#   floods             it answers without end
# FAKE_MPS_START=hangs|fails|nothing makes `-d` fail; late: its pid file comes after as many seconds as FAKE_MPS_LATE says;
# lives: it hangs when its control daemon is there.
pid_file="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
has() { [ -e "$CUDA_MPS_PIPE_DIRECTORY/$1" ]; }

if [ "$1" = -d ]; then
    case "$FAKE_MPS_START" in
        hangs) sleep 60 ;;
        fails) echo "no device"; exit 3 ;;
        nothing) exit 0 ;;
        late)
            setsid sh -c 'sleep "$FAKE_MPS_LATE"; echo $$ > "$0"; exec sleep 600' "$pid_file" \
                < /dev/null > /dev/null 2>&1 &
            exit 0 ;;
    esac
    setsid sleep 600 < /dev/null > /dev/null 2>&1 &
    echo $! > "$pid_file"
    [ "$FAKE_MPS_START" = lives ] && { touch "$CUDA_MPS_PIPE_DIRECTORY/hangs"; sleep 60; }
    exit 0
fi
has hangs && sleep 60
read -r command rest
echo "$command $rest" >> "$CUDA_MPS_LOG_DIRECTORY/commands"
has floods && exec yes
has fails && { echo "out of order"; exit 3; }
case "$command" in
    get_server_list) cat "$CUDA_MPS_PIPE_DIRECTORY/servers" 2> /dev/null ;;
    get_client_list) cat "$CUDA_MPS_PIPE_DIRECTORY/clients" 2> /dev/null ;;
    get_server_status) echo ACTIVE ;;
    quit) has stays || { kill "$(cat "$pid_file")"; rm -f "$pid_file"; } ;;
esac
exit 0
