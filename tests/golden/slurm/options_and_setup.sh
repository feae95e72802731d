#!/bin/bash

#SBATCH --account=p_scaling
#SBATCH --constraint=fast
#SBATCH --cpus-per-task=4
#SBATCH --hint=nomultithread
#SBATCH --job-name=scalebench-ddp_gloo-4
#SBATCH --mail-type=END
#SBATCH --mem=64G
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --output=/scratch/user/sweep/3/job.log
#SBATCH --qos=normal
#SBATCH --reservation=course
#SBATCH --time=30

module load CUDA/12.4
. ~/it\'s/activate

exec /home/user/venv/bin/python -P -u -m scalebench.sweeps.job_main /scratch/user/sweep/3

# its ranks are started with
# srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --label /home/user/venv/bin/python -P -m scalebench.runner.node_agent HOST:PORT --node SLURMD_NODENAME
