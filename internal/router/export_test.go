package router

// Unverify makes r take every handle for right: what vLLM itself does.
func Unverify(r *Router) { r.unverified = true }
