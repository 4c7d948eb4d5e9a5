# Takes over the few command lines that Ferrotron stands in for; everything else goes to the next python on PATH.
# The options before the script are looked at by position, so that no word is lost or quoted anew.
skip=0
for word in "$@"; do
    if [ -n "${takes_value:-}" ]; then
        takes_value=
        skip=$((skip + 1))
        continue
    fi
    case $word in
        -m | -c) break ;;
        -W | -X) takes_value=1 ;;
        -m* | -c* | --*) break ;;
        -?*) ;;
        *) break ;;
    esac
    skip=$((skip + 1))
done
after() {
    shift "$1"
    shift 1
    what=${1:-}
    case $what in
        -m)
            what=${2:-}
            [ $# -ge 2 ] && shift 2
            case $what in
                torch.distributed.launch | torch.distributed.run) run ferrotron launch "$@" ;;
                deepspeed | deepspeed.launcher.runner) run ferrotron launch --deepspeed "$@" ;;
                pretrain_gpt | preprocess_data) run "$what" "$@" ;;
                tools.preprocess_data) run preprocess_data "$@" ;;
            esac
            ;;
        pretrain_gpt.py | */pretrain_gpt.py) shift; run pretrain_gpt "$@" ;;
        preprocess_data.py | */preprocess_data.py) shift; run preprocess_data "$@" ;;
        torchrun | */torchrun) shift; run ferrotron launch "$@" ;;
        deepspeed | */deepspeed) shift; run ferrotron launch --deepspeed "$@" ;;
    esac
}
after "$skip" "$@"

self=${0##*/}
IFS=:
set -f
for folder in $PATH; do
    real=${folder:-.}/$self
    if [ -f "$real" ] && [ -x "$real" ]; then
        mark=
        { read -r first && read -r mark; } 2>/dev/null <"$real"
        case $mark in
            *'ferrotron shim'*) ;;
            *)
                unset IFS
                exec "$real" "$@"
                ;;
        esac
    fi
done
echo "$0: only pretrain_gpt.py, preprocess_data.py and their launchers run without Python, and there is no $self on PATH" >&2
exit 127
