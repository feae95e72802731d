#!/bin/bash

#SBATCH --cpus-per-task=4
#SBATCH --hint=nomultithread
#SBATCH --job-name=scalebench-ddp_gloo-3
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --output=/scratch/user/sweep/3/job.log
#SBATCH --time=4

exec /home/user/venv/bin/python -P -u -m scalebench.sweeps.job_main /scratch/user/sweep/3

# its ranks are started with
# srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 /home/user/venv/bin/python -P -m scalebench.runner.node_agent HOST:PORT --node SLURMD_NODENAME
