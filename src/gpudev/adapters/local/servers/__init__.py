"""Dev servers as processes: state folder, launch, zygote, first process (pid 1), and observation."""
