run ferrotron launch --deepspeed "$@"
