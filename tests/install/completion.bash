# The first candidates for a line in which the cursor is at the end: completion.bash SCRIPT LINE.
source "$1"
COMP_LINE=$2
COMP_POINT=${#2}
_strata
printf '%s|' "${COMPREPLY[@]}"
