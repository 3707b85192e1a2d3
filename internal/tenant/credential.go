package tenant

import (
	"net/http"
	"strings"
)

// maxCredentialBytes bounds what is hashed or parsed before anybody is known to be somebody.
const maxCredentialBytes = 16 << 10

// credential returns what the client presents, as "Authorization: Bearer C" or as Anthropic's "X-Api-Key: C",
// or "" if it presents nothing. Both headers may be there with the same value; different ones are refused,
// because whichever was taken, the other might be what another hop looks at.
func credential(h http.Header) (string, *AuthError) {
	var found string
	for _, v := range h.Values("Authorization") {
		c, refused := bearer(v)
		if refused != nil {
			return "", refused
		}
		if found != "" && c != found {
			return "", several()
		}
		found = c
	}
	for _, v := range h.Values("X-Api-Key") {
		c := strings.TrimSpace(v)
		if found != "" && c != "" && c != found {
			return "", several()
		}
		if c != "" {
			found = c
		}
	}
	if len(found) > maxCredentialBytes {
		return "", unauthorized(BadToken, "the credential is too long")
	}
	return found, nil
}

func several() *AuthError {
	return unauthorized(SeveralCredentials, "the request carries different credentials; send one, in Authorization or in X-Api-Key")
}

// bearer returns the token of an Authorization value. An empty value counts as absent.
func bearer(value string) (string, *AuthError) {
	scheme, token, _ := strings.Cut(strings.TrimSpace(value), " ")
	token = strings.TrimSpace(token)
	if scheme == "" {
		return "", nil
	}
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t") {
		return "", unauthorized(BadToken, `the Authorization header is not of the form "Bearer CREDENTIAL"`)
	}
	return token, nil
}
