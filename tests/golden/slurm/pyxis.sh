#!/bin/bash

#SBATCH --cpus-per-task=6
#SBATCH --gres=gpu:8
#SBATCH --hint=nomultithread
#SBATCH --job-name=scalebench-ddp_gloo-16
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --output=/scratch/user/sweep/3/job.log
#SBATCH --partition=gpu
#SBATCH --time=4

exec /home/user/venv/bin/python -P -u -m scalebench.sweeps.job_main /scratch/user/sweep/3

# its ranks are started with
# srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --container-image=/img/scalebench.sif --container-mounts=/scratch/user/sweep/3:/scratch/user/sweep/3,/scratch/user/cache:/scratch/user/cache,/data:/data:ro python3 -P -m scalebench.runner.node_agent HOST:PORT --node SLURMD_NODENAME
