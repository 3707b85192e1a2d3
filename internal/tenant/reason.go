package tenant

import (
	"net/http"
	"strconv"
	"time"
)

// Reason is the stable name of a refusal, for metrics, receipts and error codes.
type Reason string

// Why a request was refused.
const (
	NoCredential       Reason = "no-credential"       // 401: none was presented
	SeveralCredentials Reason = "several-credentials" // 401: they differ, so whose request is it?
	UnknownCredential  Reason = "unknown-credential"  // 401: no authenticator knows it
	Expired            Reason = "expired"             // 401
	NotYetValid        Reason = "not-yet-valid"       // 401
	BadToken           Reason = "bad-token"           // 401: malformed, wrong signature, wrong audience, no exp
	NoTenant           Reason = "no-tenant"           // 403: authentic, but it names no usable tenant
	ModelNotAllowed    Reason = "model-not-allowed"   // 403
	KeysUnavailable    Reason = "keys-unavailable"    // 503: the issuer's keys cannot be had now

	BodyTooLarge Reason = "body-too-large" // 413: no amount of waiting helps
	Rate         Reason = "rate"           // 429, 503
	Concurrency  Reason = "concurrency"    // 429, 503
	PromptBytes  Reason = "prompt-bytes"   // 429, 503
	FairShare    Reason = "fair-share"     // 429: room is left, but for other tenants
)

// AuthError is the refusal of a client that could not show who it is (401), may not do this (403), or cannot
// be checked now (503).
type AuthError struct {
	Status  int
	Reason  Reason
	Message string // for the client; holds nothing secret
	// Challenge is the value of WWW-Authenticate, with every 401.
	Challenge string
	// RetryAfter is set with 503.
	RetryAfter time.Duration
	// Cause is for the operator's log, nil if the message says it all.
	Cause error
}

func (e *AuthError) Error() string {
	if e.Cause != nil {
		return e.Message + ": " + e.Cause.Error()
	}
	return e.Message
}

func (e *AuthError) Unwrap() error { return e.Cause }

// SetHeaders sets the response headers that go with the status.
func (e *AuthError) SetHeaders(h http.Header) {
	if e.Challenge != "" {
		h.Set("WWW-Authenticate", e.Challenge)
	}
	setRetryAfter(h, e.RetryAfter)
}

func setRetryAfter(h http.Header, d time.Duration) {
	if d > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(wholeSeconds(d)/time.Second), 10))
	}
}

// wholeSeconds rounds up to what Retry-After can say, at least 1 s.
func wholeSeconds(d time.Duration) time.Duration {
	return max((d + time.Second - 1).Truncate(time.Second), time.Second)
}

// unauthorized is a 401. RFC 6750 §3: the error attribute is left out if there was no credential.
func unauthorized(why Reason, message string) *AuthError {
	challenge := `Bearer realm="tarik"`
	if why != NoCredential {
		challenge += `, error="invalid_token", error_description="` + string(why) + `"`
	}
	return &AuthError{Status: http.StatusUnauthorized, Reason: why, Message: message, Challenge: challenge}
}
