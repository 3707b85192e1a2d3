package tenant

import "context"

type contextKey struct{}

// NewContext returns ctx with the client whose request it is.
func NewContext(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// FromContext returns the client whose request ctx belongs to, false if nobody has authenticated it.
func FromContext(ctx context.Context) (Identity, bool) {
	id, ok := ctx.Value(contextKey{}).(Identity)
	return id, ok
}
