# The groups of GPU machines. The GPU types come from the server's catalogue (../declared.json).
locals {
  declared     = jsondecode(file("${path.module}/../declared.json"))
  gpu_types    = local.declared.gpu_types
  by_machine   = { for name, type in local.gpu_types : type.instance_type => name }
  default_name = lookup(local.by_machine, var.instance_type, "unknown-${replace(var.instance_type, ".", "-")}")

  wanted_groups = length(var.gpu_groups) > 0 ? var.gpu_groups : {
    (local.default_name) = {
      instance_type           = var.instance_type
      count                   = var.gpu_instance_count
      zone                    = ""
      capacity_reservation_id = ""
      capacity_block          = false
      spot                    = false
      efa                     = false
      placement               = false
    }
  }

  # As in the availability reconciler: the longest type name that the group's name contains as a whole.
  types_of_group = {
    for name in keys(local.wanted_groups) : name => [
      for type in keys(local.gpu_types) : type if name == type || startswith(name, "${type}-")
    ]
  }
  type_of_group = {
    for name, types in local.types_of_group : name => one([
      for type in types : type if alltrue([for other in types : length(other) <= length(type)])
    ])
  }

  gpu_groups = {
    for name, group in local.wanted_groups : name => merge(group, {
      type          = local.type_of_group[name]
      instance_type = group.instance_type != "" ? group.instance_type : try(local.gpu_types[local.type_of_group[name]].instance_type, "")
      zone          = group.zone != "" ? group.zone : local.primary_zone
      placement     = group.placement || group.efa
    })
  }
  has_efa = anytrue([for group in values(local.gpu_groups) : group.efa])
}
