{{/*
The database's passwords: from the values, otherwise from the cluster, otherwise generated. Computed once per rendering,
because generated ones differ each time. Some are always generated, so the checksum reveals nothing.
*/}}
{{- define "gpu-dev.credentials" -}}
{{- $auth := .Values.postgres.auth -}}
{{- if not (hasKey $auth "inUse") -}}
{{- $secret := lookup "v1" "Secret" .Values.namespaces.controlplane "postgres-credentials" | default dict -}}
{{- $kept := $secret.data | default dict -}}
{{- $password := $auth.password | default (index $kept "POSTGRES_PASSWORD" | default "" | b64dec) -}}
{{- $all := dict "POSTGRES_PASSWORD" ($password | default (randAlphaNum 32)) -}}
{{- range $key := list "REPLICATION_PASSWORD" "API_PASSWORD" "PROCESSOR_PASSWORD" "RECONCILER_PASSWORD" -}}
{{- $_ := set $all $key (index $kept $key | default "" | b64dec | default (randAlphaNum 32)) -}}
{{- end -}}
{{- $_ := set $auth "inUse" $all -}}
{{- end -}}
{{- range $name, $value := $auth.inUse }}
{{ $name }}: {{ $value | b64enc | quote }}
{{- end -}}
{{- end }}

{{/* Whether services connect with their own database roles. */}}
{{- define "gpu-dev.has-roles" -}}
{{- if and .Values.postgres.enabled .Values.postgres.auth.rolePerService (not .Values.postgres.auth.existingSecret) }}yes{{ end -}}
{{- end }}
