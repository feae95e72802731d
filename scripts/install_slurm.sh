#!/usr/bin/env bash
# SLURM with accounts for the test cluster, from the distribution. Never fails: without it those tests are skipped.
set -u

has() { command -v "$1" >/dev/null 2>&1; }
left_out() { echo "no SLURM for the tests of clusters, which are skipped: $1"; exit 0; }

# Program by program: each stands for the package in the same place.
programs=(slurmctld slurmd sbatch munged slurmdbd mariadbd mariadb-admin ip tc faketime)
packages=(slurmctld slurmd slurm-client munge slurmdbd mariadb-server mariadb-client iproute2 iproute2 faketime)
missing=()
for i in "${!programs[@]}"; do
  has "${programs[i]}" || case " ${missing[*]} " in
    *" ${packages[i]} "*) ;;
    *) missing+=("${packages[i]}") ;;
  esac
done
if [ "${#missing[@]}" = 0 ]; then exit 0; fi
names=${missing[*]}
has apt-get || left_out "there is no apt-get; install $names"
[ "$(id -u)" = 0 ] || left_out "sudo apt-get install $names brings it"
echo "installing $names"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install --quiet --quiet --yes --no-install-recommends "${missing[@]}")
# Lists of packages may be missing or old; a mirror that does not answer must not hold the tests for ever.
timeout 300 "${install[@]}" >/dev/null 2>&1 ||
  { timeout 300 apt-get update --quiet --quiet >/dev/null 2>&1 && timeout 600 "${install[@]}" >/dev/null 2>&1; } ||
  left_out "apt-get install $names did not go well"
