#!/bin/sh
echo "$@" >{folder}/srun_arguments.txt
env >{folder}/step_environment.txt
for word; do case $word in
    --ntasks=*) tasks=${{word#*=}};;
    --nodelist=*) nodes=$(echo "${{word#*=}}" | tr ',' '\n');;
    --distribution=arbitrary) nodes=$(cat "$SLURM_HOSTFILE");;
esac; done
while [ "${{1#-}}" != "$1" ]; do shift; done
task=0
while [ $task -lt $tasks ]; do
    node=$(echo "$nodes" | sed -n "$((task + 1))p")
    SLURM_PROCID=$task SLURM_STEP_ID=0 SLURMD_NODENAME=$node "$@" &
    task=$((task + 1))
done
wait
