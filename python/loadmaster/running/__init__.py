"""Plans that run, on emulated and on real devices, and what is measured of them."""
