# The pools of GPU machines. GPU types come from the server's catalogue (../declared.json); their machine types on Google Cloud
# are listed here.
locals {
  declared = jsondecode(file("${path.module}/../declared.json"))
  machines = {
    t4   = { machine_type = "n1-standard-32", accelerator = "nvidia-tesla-t4", gpus = 4 }
    l4   = { machine_type = "g2-standard-48", accelerator = "nvidia-l4", gpus = 4 }
    a100 = { machine_type = "a2-highgpu-8g", accelerator = "nvidia-tesla-a100", gpus = 8 }
    h100 = { machine_type = "a3-highgpu-8g", accelerator = "nvidia-h100-80gb", gpus = 8 }
    h200 = { machine_type = "a3-ultragpu-8g", accelerator = "nvidia-h200-141gb", gpus = 8 }
    b200 = { machine_type = "a4-highgpu-8g", accelerator = "nvidia-b200", gpus = 8 }
  }

  types_of_pool = {
    for name in keys(var.gpu_pools) : name => [
      for type in keys(local.machines) : type if name == type || startswith(name, "${type}-")
    ]
  }
  type_of_pool = {
    for name, types in local.types_of_pool : name => one([
      for type in types : type if alltrue([for other in types : length(other) <= length(type)])
    ])
  }

  gpu_pools = {
    for name, pool in var.gpu_pools : name => merge(pool, {
      type         = local.type_of_pool[name]
      machine_type = pool.machine_type != "" ? pool.machine_type : try(local.machines[local.type_of_pool[name]].machine_type, "")
      accelerator  = try(local.machines[local.type_of_pool[name]].accelerator, "")
      gpus         = try(local.machines[local.type_of_pool[name]].gpus, 0)
      zone         = pool.zone != "" ? pool.zone : var.primary_zone
    })
  }
}
