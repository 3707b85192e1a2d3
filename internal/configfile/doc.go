// Package configfile reads the configuration file: strictly, with the place of whatever is wrong, and without
// showing a secret.
//
//	bytes ─► Parse ─► Document ─► Decode(&config)    unknown keys, wrong types
//	                      └─────► Fail(path, why)    what only the whole can tell: "tenants.auth[0].jwt: …"
//
// The caller fills the struct with defaults first: keys that the file leaves out keep them.
//
// # Secrets
//
// Any line of the file may hold a secret, also one that was written to the wrong place. So an error shows, of its
// line, only the key it is about, and a value only if it is short and in block style. [Secret] is a value that
// prints as nothing, with ${NAME} for environment variables.
//
// # Concurrency
//
// A Document does not change. Nothing here reads the environment or a file by itself.
//
// # What it does not do
//
// It takes plain YAML: no anchors, aliases, merge keys, tags or second documents, and no key without a value. It
// knows no key of the configuration; each package owns its own part.
package configfile
