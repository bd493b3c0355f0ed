{{/*
The database's passwords: as given, else as they are in the cluster, else new ones. Worked out once per rendering,
because new ones would be others each time. Both are in it, so its checksum tells nobody anything.
*/}}
{{- define "gpu-dev.credentials" -}}
{{- $auth := .Values.postgres.auth -}}
{{- if not (hasKey $auth "inUse") -}}
{{- $secret := lookup "v1" "Secret" .Values.namespaces.controlplane "postgres-credentials" | default dict -}}
{{- $kept := $secret.data | default dict -}}
{{- $password := $auth.password | default (index $kept "POSTGRES_PASSWORD" | default "" | b64dec) -}}
{{- $replication := index $kept "REPLICATION_PASSWORD" | default "" | b64dec | default (randAlphaNum 32) -}}
{{- $_ := set $auth "inUse" (dict "POSTGRES_PASSWORD" ($password | default (randAlphaNum 32)) "REPLICATION_PASSWORD" $replication) -}}
{{- end -}}
{{- range $name, $value := $auth.inUse }}
{{ $name }}: {{ $value | b64enc | quote }}
{{- end -}}
{{- end }}
