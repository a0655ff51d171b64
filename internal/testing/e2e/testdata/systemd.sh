#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# systemd.sh boot DIR SMCR UNITS CGROUP: runs systemd as process 1 of new namespaces, with the
# units of the directory UNITS and the program SMCR. The machine's files are below an overlay
# in DIR, so nothing is changed there. It shares /run/smcr with the machine. To be
# started by `unshare --mount --pid --fork --mount-proc`.
#
# systemd.sh clean CGROUP: removes what is left of the cgroup. To be started by
# `unshare --mount`.
set -euo pipefail

# boot goes on in a cgroup of its own.
boot() {
  mkdir -p "$1/cgroup"
  mount -t cgroup2 cgroup2 "$1/cgroup"
  mkdir -p "$1/cgroup/$4"
  echo 0 >"$1/cgroup/$4/cgroup.procs"
  umount "$1/cgroup"
  exec unshare --cgroup --ipc --uts -- "$BASH" "$0" inside "$@"
}

inside() {
  local dir=$1 smcr=$2 units=$3 root=$1/root name
  mount -t tmpfs tmpfs "$dir"
  mkdir "$dir"/{upper,work,root}
  install -D -m 755 "$smcr" "$dir/upper/usr/local/bin/smcr"
  mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount --rbind /dev "$root/dev"
  mount --make-rslave "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mkdir -p /run/smcr "$root/run/smcr"
  mount --bind /run/smcr "$root/run/smcr"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  # No unit of the machine starts.
  mount -t tmpfs -o mode=755 tmpfs "$root/usr/lib/systemd/system"
  mount -t tmpfs -o mode=755 tmpfs "$root/etc/systemd"
  mkdir -p "$root/etc/systemd/system/smcr.service.d"
  for name in sysinit basic shutdown network multi-user default; do
    printf '[Unit]\nDefaultDependencies=no\n' >"$root/etc/systemd/system/$name.target"
  done
  install -m 644 "$units"/*.{service,socket} "$root/usr/lib/systemd/system/"
  printf '[Service]\nEnvironment=SMCR_HOST_ID=%s SMCR_SYSCALL_FILTER=strict\nStandardOutput=append:/run/log\nStandardError=append:/run/log\n' \
    "${SMCR_HOST_ID:-}" >"$root/etc/systemd/system/smcr.service.d/test.conf"
  chroot "$root" systemd-sysusers --inline "$(grep '^u ' "$units/smcr.sysusers.conf")"
  exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=smcr-test \
    /lib/systemd/systemd --system --unit=default.target --log-target=null --show-status=no
}

clean() {
  local dir
  dir=$(mktemp -d)
  mount -t cgroup2 cgroup2 "$dir"
  find "$dir/$1" -depth -type d -exec rmdir {} + || { umount "$dir"; rmdir "$dir"; exit 1; }
  umount "$dir"
  rmdir "$dir"
}

"$@"
