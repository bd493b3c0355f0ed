#!/bin/sh
# Makes a folder the root of a small container and runs a command as its first process. Called by the tests, as root,
# in mount and process namespaces of its own:
#   unshare --mount --pid --fork sh enter-container.sh ROOT COMMAND...
set -eu
root=$1
shift

mount --make-rprivate /
mount --bind "$root" "$root"
if [ ! -e "$root/.bare" ]; then
    for folder in usr bin sbin lib lib32 lib64 etc/alternatives; do
        if [ -L "/$folder" ]; then
            ln -sfn "$(readlink "/$folder")" "$root/$folder"
        elif [ -d "/$folder" ]; then
            mkdir -p "$root/$folder"
            mount --bind -o ro "/$folder" "$root/$folder"
        fi
    done
fi
mkdir -p "$root/dev" "$root/proc"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
cd "$root"
exec chroot "$root" "$@"
