run ferrotron launch "$@"
