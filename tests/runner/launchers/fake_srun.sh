#!/bin/sh
trap '' USR2  # the tasks get it, which are in its group
echo "$@" >{folder}/srun_arguments.txt
env >{folder}/step_environment.txt
for word; do case $word in --ntasks=*) tasks=${{word#*=}};; esac; done
while [ "${{1#-}}" != "$1" ]; do shift; done
task=0
while [ $task -lt $tasks ]; do
    node=$(sed -n "$((task + 1))p" "$SLURM_HOSTFILE")
    SLURM_PROCID=$task SLURM_STEP_ID=0 SLURMD_NODENAME=$node "$@" &
    task=$((task + 1))
done
wait
